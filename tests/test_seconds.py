"""The clock that says what a run of tests spent its seconds on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.seconds import PARTS, Clock

ROOT = Path(__file__).resolve().parents[1]


def test_a_second_belongs_to_the_innermost_part() -> None:
    times = iter([1.0, 3.0, 6.0, 10.0, 15.0])
    clock = Clock("tests", now=lambda: next(times))
    clock.enter("run")  # 1 of the tests
    clock.enter("load")  # 2 of the run
    clock.leave()  # 3 of loading
    clock.leave()  # 4 more of the run
    clock.turn()  # 5 more of the tests
    assert clock.spent == {"tests": 6.0, "run": 6.0, "load": 3.0}
    assert clock.calls == {"run": 1, "load": 1}


def test_a_part_ends_with_its_function_also_where_that_raises() -> None:
    clock = Clock("tests", now=lambda: 0.0)

    def fails() -> None:
        assert clock.parts == ["tests", "run"]
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="of its own"):
        clock.timed("run", fails)()
    assert clock.parts == ["tests"]


CASE = """
from layoutgemm import emulate_ptx

def test_one():
    text = ".version 8.7 .target sm_90a .visible .entry k() { .reg .b32 %r<1>; mov.b32 %r0, 1; ret; }"
    assert emulate_ptx(text, block=32).ok
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_the_table_counts_what_was_emulated(tmp_path: Path, workers: int) -> None:
    """One kernel was read and made ready, and run once, whichever process it was."""
    (tmp_path / "test_case.py").write_text(CASE)
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.seconds", "-n", str(workers), "-q"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # each process would import them
    done = subprocess.run(
        [*command, "-c", "/dev/null", str(tmp_path)], cwd=ROOT, env=alone, capture_output=True, text=True, check=False
    )
    rows = {words[-1]: words for line in done.stdout.splitlines() for words in [line.split()[:4]] if "x" in words}
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"in {f'{workers} workers' if workers else 'one process'}:" in done.stdout
    assert {part: int(words[1]) for part, words in rows.items()} == {"load": 1, "run": 1}
    assert rows.keys() <= PARTS.keys()


def test_a_worker_has_its_share_of_the_processors() -> None:
    """Threads beyond it wait by spinning. torch reads the variable when it is imported, which is after conftest."""
    torch = needs.module("torch")
    share = max(1, (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    assert torch.get_num_threads() <= int(os.environ.get("OMP_NUM_THREADS", share))
    assert "PYTEST_XDIST_WORKER_COUNT" not in os.environ or "OMP_NUM_THREADS" in os.environ
