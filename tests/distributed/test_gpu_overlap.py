"""Overlapping products on the GPUs of this machine: against float64, and gradients against those with NCCL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs

torch = needs.module("torch")

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_overlap.py"


@pytest.mark.gpu
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_products_of_shards_are_right_on_gpus(ranks: int) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs: run it on a machine with {ranks}")
    command = [sys.executable, str(PROGRAM), "--ranks", str(ranks), "--parts", "checks", "block", "--repeat", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
