"""Every measuring program without a GPU: one line on standard error, nothing else, exit status 2."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import needs
from tests.micro import cuda_driver
from tests.needs import module

ROOT = Path(__file__).resolve().parents[2]
# Program -> command lines that measure on torch's GPU, or on what the CUDA driver alone finds.
BY_TORCH = {
    "bench_ahead": [""],
    "bench_ampere": ["run FOLDER"],
    "bench_doors": ["", "--parts jax"],
    "bench_epilogue": [""],
    "bench_frameworks": [""],
    "bench_gated": [""],
    "bench_gated_groups": [""],
    "bench_gated_scaled": ["", "--tiles 3"],
    "bench_gemm": [""],
    "bench_inductor": [""],
    "bench_indexed": [""],
    "bench_quantize": [""],
    "bench_ladder": [""],
    "bench_launch": [""],
    "bench_lines": [""],
    "bench_models": [""],
    "bench_operands": ["", "--parts pairs"],
    "bench_operators": [""],
    "bench_overlap": [""],
    "bench_quantized": ["", "--quick"],
    "bench_quantized_mma": [""],
    "bench_orders": [""],
    "bench_prologue": [""],
    "bench_programs": [""],
    "bench_reductions": [""],
    "bench_types": ["run"],
    "bench_variants": [""],
    "profile_gemm": ["", "--launch"],
    "profile_variants": ["scaled:64x64x128", "grouped:2x64x64x128 --launch"],
    "profile_ladder": ["table", "launch hopper_03_tma.py 0"],
    "soak": [""],
    "soak_variants": ["", "--seconds 5"],
    "tune_gemm": ["run FOLDER"],
    "verify_gpu": ["", "--plant"],
    "verify_places": ["", "--plant 1"],
}
BY_DRIVER = {
    "verify_atoms": ["all"],
    "verify_banks": [""],
    "verify_copies": ["matrix", "edges"],
    "verify_emulator": [""],
}
# verify_ptx looks at a stored file without one.
WITHOUT = {
    "bench_algebra", "bench_emulator", "bench_host", "bench_playground", "bench_proofs", "fit_choice", "fit_scaled",
    "run_examples", "tables", "verify_ptx",
}  # fmt: skip


def lines(programs: dict[str, list[str]]) -> list[tuple[str, str]]:
    return [(program, line) for program, lines in programs.items() for line in lines]


def refusal(program: str, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The program's refusal on standard error."""
    assert importlib.import_module(f"benchmarks.{program}").main(line.split()) == needs.REFUSED
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(("program", "line"), lines(BY_TORCH))
def test_without_a_gpu(
    program: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = module("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(program, line, capsys) == "torch finds no CUDA GPU: nothing can be measured\n"


def test_fewer_gpus_than_ranks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    torch = module("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    said = refusal("bench_overlap", "--ranks 4", capsys)
    assert said == "torch finds 3 CUDA GPU(s): 4 ranks need one each\n"


@pytest.mark.parametrize(("program", "line"), lines(BY_DRIVER))
def test_without_a_driver(
    program: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cuda_driver, "available", lambda: "libcuda.so.1: no such file")
    assert refusal(program, line, capsys) == "no GPU to run on: libcuda.so.1: no such file\n"


@pytest.mark.parametrize(
    ("program", "line"),
    [("profile_gemm", "--ncu"), ("profile_variants", "scaled:64x64x128 --ncu"), ("profile_ladder", "table --ncu")],
)
def test_without_a_tool(
    program: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = module("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert refusal(program, f"{line} no-such-tool", capsys).startswith("no-such-tool is not here: ")


def test_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refusal("bench_launch", "", capsys) == "torch is not installed: pip install 'layoutgemm[dsl,torch]'\n"


def test_every_program_is_covered() -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py")}
    programs = {stem for stem, text in texts.items() if re.search(r"^def main\(", text, flags=re.MULTILINE)}
    assert programs == {*BY_TORCH, *BY_DRIVER, *WITHOUT}


def test_programs_that_import_tests_run_from_any_folder(tmp_path: Path) -> None:
    program = ROOT / "benchmarks" / "verify_banks.py"
    done = subprocess.run([sys.executable, "-I", str(program), "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_present_gpu_is_not_a_reason_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = module("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda_driver, "available", lambda: None)
    assert needs.refused(needs.no_gpu(), needs.no_driver(), needs.no_tool(sys.executable)) == 0
