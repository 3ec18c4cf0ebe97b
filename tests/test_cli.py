"""The command line: what the demo says, and that it fails when something does not hold."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from layoutgemm.cli import main


def test_demo_derives_checks_runs_and_draws(tmp_path, capsys):
    svg = tmp_path / "new" / "map.svg"
    assert main(["demo", "-m", "65", "-n", "70", "-k", "40", "--device", "reference", "--svg", str(svg)]) == 0
    text = capsys.readouterr().out
    for part in (
        "1. The derivation",
        "box (k 64, m 64)",
        "checks hold",
        "3. The compiled kernel",
        "ran on: NumPy executor",
        "against float64",
        "equal within the bound",
        f"written to {svg}",
    ):
        assert part in text, part
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")


def test_explain(capsys):
    assert main(["explain", "64", "64", "64", "-b", "bf16:col"]) == 0
    assert "0x4000004000010000" in capsys.readouterr().out


def test_errors_are_one_line_and_status_1(capsys):
    assert main(["explain", "0", "64", "64"]) == 1
    assert capsys.readouterr().err.startswith("layoutgemm: PlanError: m = 0")
    with pytest.raises(SystemExit) as stop:
        main(["explain", "64"])
    assert stop.value.code == 2


def test_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "layoutgemm.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("layoutgemm ")
