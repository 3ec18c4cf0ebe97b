"""The microkernels that measure wavefronts: they assemble whole, and the program that reads them sees what differs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.verify_banks import cases, predicted
from layoutgemm.checks import bank_conflicts
from layoutgemm.errors import PlanError
from layoutgemm.kernels.compile.sass import disassemble
from tests import needs
from tests.checks.smem import bank_model as model
from tests.micro import banks as micro


@needs.PTXAS
def test_the_microkernels_assemble_and_keep_every_access(tmp_path: Path) -> None:
    (tmp_path / "banks.ptx").write_text(micro.module(), encoding="utf-8")
    done = subprocess.run(
        ["ptxas", "-arch=sm_90", "banks.ptx", "-o", "banks.cubin"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    try:
        sass = disassemble((tmp_path / "banks.cubin").read_bytes())
    except PlanError as absent:
        pytest.skip(str(absent))
    # The compiler may merge accesses to one address, or unroll the rounds: each kernel has its copies, each once,
    # and after them the load that waits for the stores, and a store that is never taken.
    loads = sum(form.loads for form in micro.FORMS.values() if "matrix" not in form.kind)
    stores = sum(not form.loads for form in micro.FORMS.values() if "matrix" not in form.kind)
    every = len(micro.FORMS)
    assert sass.count("LDS") == loads * micro.UNROLL + every and sass.count("STS") == stores * micro.UNROLL + every
    assert sass.count("LDSM") == sass.count("STSM") == 3 * micro.UNROLL
    assert not sass.local_memory


def test_the_microkernels_patterns_fit_and_have_the_wavefronts_of_the_loops() -> None:
    for pattern in micro.patterns():
        assert len(pattern.addresses) == 32
        for name in pattern.forms:
            form = micro.FORMS[name]
            used = list(pattern.addresses[: form.lanes])
            assert all(a is None or 0 <= a <= micro.SMEM_BYTES - form.width for a in used)
            assert form.masked or None not in used
            if any(a is not None and a % form.width for a in used):
                continue
            found = bank_conflicts(used, form.width, form.kind, packing=False)
            assert found.wavefronts == sum(model.all_ways(used, form.width))
            if pattern.plain:  # sets the unit: no model may doubt it
                assert bank_conflicts(used, form.width, form.kind).wavefronts == found.wavefronts


class PretendGpu:
    """Answers a launch with the clocks of an SM that follows the model. One instruction differs."""

    name, capability, driver, ptx_version, wrong = "pretend", (9, 0), (13, 0), (9, 0), ""

    def __enter__(self) -> PretendGpu:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def load(self, ptx: str) -> str:
        return ptx

    def launch(self, ptx: str, name: str, grid: int, block: int, inputs: list[Any], outputs: list[int]) -> list[Any]:
        assert f".entry {name}(" in ptx and (grid, block) == (1, 32 * micro.WARPS) and inputs[1].tolist() == [0]
        form = micro.FORMS[name]
        used = [None if a == micro.IDLE else int(a) for a in inputs[0][: form.lanes]]
        waves = bank_conflicts(used, form.width, form.kind).wavefronts + (name == self.wrong)
        out = np.zeros(outputs[0], np.uint8)
        clocks = out[: micro.WARPS * 16].view(np.uint64).reshape(-1, 2)
        clocks[:] = np.arange(micro.WARPS)[:, None]
        clocks[:, 1] += 1000 + waves * micro.WARPS * micro.UNROLL * micro.ROUNDS
        return [out]


@pytest.mark.parametrize(("wrong", "plant"), [("", 0), ("", 2), ("ld_v2", 0)])
def test_the_measurement_sees_what_differs(
    wrong: str, plant: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """benchmarks/verify_banks.py on a pretended GPU: all agrees; a planted error, or another machine, is seen."""
    driver = ModuleType("tests.micro.cuda_driver")
    vars(driver).update(Device=type("Device", (PretendGpu,), {"wrong": wrong}), available=lambda: None)
    monkeypatch.setitem(sys.modules, "tests.micro.cuda_driver", driver)
    path = Path(__file__).parents[3] / "benchmarks" / "verify_banks.py"
    spec = importlib.util.spec_from_file_location("verify_banks", path)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    monkeypatch.setattr(program, "REPEATS", 1)
    failed = program.main(["--json", str(tmp_path / "out.json"), "--plant", str(plant)])
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    differ = {row["form"] for row in found["rows"] if not row["ok"]}
    assert found["agree"] == sum(row["ok"] for row in found["rows"]) and found["of"] == len(program.cases()) > 150
    assert bool(failed) == bool(differ) == bool(wrong or plant)
    assert "DIFFERS" in capsys.readouterr().out if failed else 0.99 < min(found["units"].values()) < 1.05
    if wrong:
        assert differ == {wrong}
    if plant:
        assert len(differ) > 5


def test_the_model_agrees_with_what_an_h200_measured() -> None:
    """Every pattern of benchmarks/results/banks_h200.json: cycles in wavefronts, within a quarter of one or 6%."""
    root = Path(__file__).resolve().parents[3]
    recorded = json.loads((root / "benchmarks/results/banks_h200.json").read_text(encoding="utf-8"))
    measured = {(row["form"], row["pattern"]): row["measured"] for row in recorded["rows"]}
    found = {(form.name, pattern.name): predicted(form, pattern) for form, pattern in cases()}
    assert len(found) >= 198 and set(found) == set(measured)
    wrong = {
        which: (measured[which], waves)
        for which, waves in found.items()
        if abs(measured[which] - waves) > max(0.25, 0.06 * waves)
    }
    assert not wrong
