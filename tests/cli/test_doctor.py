"""The doctor's report: what is missing is named, with a way out, and the exit status says whether matmul can run."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from layoutgemm.cli import doctor
from layoutgemm.cli import main as cli
from layoutgemm.cli.doctor import MISSING, NOTE, OK, ReportLine
from tests import needs

NAMES = {"package", "driver", "torch", "GPU", "DSL", "runtime", "compiler", "SASS tools", "cache"}


def found(name: str) -> ReportLine:
    return next(finding for finding in doctor.examine() if finding.name == name)


def test_everything_is_looked_at_and_every_lack_has_a_way_out() -> None:
    findings = doctor.examine()
    assert {finding.name for finding in findings} | {"GPU"} == NAMES
    for finding in findings:
        assert finding.found and (finding.state == OK or finding.way_out), finding


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    status = cli.main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] == (status == 0) == (not report["missing"])
    assert {finding["name"] for finding in report["findings"]} | {"GPU"} == NAMES
    assert cli.main(["doctor"]) == status
    text = capsys.readouterr().out
    assert text.rstrip().endswith(("on the GPU here",) if status == 0 else ("computed by torch", "need none of it"))


def test_a_torch_that_can_find_no_gpu_is_not_imported() -> None:
    """The report is that of the imported torch: its version.py, without a GPU or a driver."""
    needs.module("torch")
    program = (
        "import sys; from layoutgemm.cli import doctor; lines = [str(x) for x in doctor._gpus()]; "
        "found = doctor._torch(); assert ('torch' in sys.modules) == found.sees_gpus, found; "
        "import torch; assert lines == [str(x) for x in doctor._gpus()], lines"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_verdicts() -> None:
    good, lacking, less = (
        ReportLine("a", OK, "x"),
        ReportLine("b", MISSING, "y", "get it"),
        ReportLine("c", NOTE, "z", "better"),
    )
    assert doctor.status([good, less]) == 0 and doctor.status([good, lacking]) == 1
    assert "-> get it" in doctor.report([lacking]) and "does not run on a GPU here: b" in doctor.report([good, lacking])


def test_absent_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name in ("torch", "cutlass") else real(name)
    )
    monkeypatch.setenv("CUTE_DSL_LIBS", "")
    assert found("torch").state == MISSING and "pip install 'layoutgemm[torch]'" in found("torch").way_out
    assert found("DSL").state == MISSING and "layoutgemm[dsl]" in found("DSL").way_out
    assert found("runtime").state == MISSING


def test_another_version_of_the_dsl_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("cutlass") is None:
        pytest.skip(needs.reason("cutlass"))
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "9.9.9")
    assert found("DSL").state == NOTE and f"9.9.9; {doctor.TESTED_DSL} is the tested one" in found("DSL").found


def gpu(name: str, major: int, minor: int) -> Any:
    return SimpleNamespace(name=name, major=major, minor=minor, multi_processor_count=132, total_memory=141 * 2**30)


@pytest.mark.parametrize(
    "gpus, states",
    [
        ([gpu("NVIDIA H200", 9, 0)], [OK]),
        ([gpu("NVIDIA A100", 8, 0)], [NOTE]),
        ([gpu("NVIDIA V100", 7, 0)], [MISSING]),
        ([gpu("NVIDIA H200", 9, 0), gpu("NVIDIA L4", 8, 9)], [OK, NOTE]),
    ],
)
def test_gpus(gpus: list[Any], states: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch = needs.module("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpus[index])
    assert [finding.state for finding in doctor.examine() if finding.name == "GPU"] == states


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name, **options: None)
    assert found("compiler").state == NOTE and "install gcc or clang" in found("compiler").way_out


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", "")
    assert found("cache").state == NOTE and "off" in found("cache").found
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path / "new"))
    assert found("cache").state == OK and "0 kernels" in found("cache").found
    assert not (tmp_path / "new").exists()  # looking leaves nothing
    for folder in ("~nosuchuser", str(tmp_path / ("x" * 300))):
        monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", folder)
        assert found("cache").state == NOTE and folder in found("cache").found
    if hasattr(os, "getuid"):
        monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path / "new"))
        kernels = tmp_path / "new" / "layoutgemm-cache" / "kernels"
        kernels.mkdir(parents=True)
        kernels.chmod(0o777)
        assert found("cache").state == NOTE and "may be written by others" in found("cache").found
        assert "chmod 700" in found("cache").way_out
        kernels.rmdir()
        kernels.symlink_to(tmp_path)
        assert found("cache").state == NOTE and "is a symbolic link" in found("cache").found
