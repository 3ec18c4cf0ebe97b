"""Programs that measure on the CPU: each runs to its end as a user calls it, in one round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("program", "words", "row"),
    [
        ("bench_proofs", "--rounds 1", "theorem: TMA boxes"),
        ("bench_algebra", "--rounds 1 --no-import", "swizzle, one"),
    ],
)
def test_it_measures_every_row(program: str, words: str, row: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{program}.py"), *words.split()]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert row in ended.stdout
