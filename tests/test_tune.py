"""Candidates, what is kept of a measurement, and that matmul takes it; the measuring itself is a GPU's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from layoutgemm import tuned
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels.sm90_choice import Sm90Choice, choose
from layoutgemm.kernels.sm90_places import Places
from layoutgemm.kernels.sm90_plan import Sm90Config
from layoutgemm.torch_problem import Given, Problem, solve
from layoutgemm.tune import candidates, name_of, tune

GPU = "NVIDIA H200"
CHOICE = Sm90Choice(Sm90Config((128, 64), consumers=1, loader="warp", cluster=(1, 2)))
KEY = tuned.key_of((512, 512, 512, 1), ("bf16",) * 3, ("row", "row", "row"))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("sizes", [(4096, 4096, 4096), (16, 4096, 4096), (512, 1000, 64)])
def test_candidates(sizes: tuple[int, int, int]) -> None:
    found = list(candidates(*sizes))
    assert found[0] == choose(*sizes)[0] and len(found) == len(set(found)) >= 8
    assert len({name_of(choice) for choice in found}) == len(found)
    derived = 0
    for choice in found:
        try:
            choice.plan(*sizes, b="bf16:col")
            derived += 1
        except LayoutError:
            pass
    assert derived >= 0.8 * len(found)


def problem(gpu: str = GPU, **others: Any) -> Problem:
    square = Given((512, 512), (512, 1), "bf16")
    return Problem(square, square, square, Places(), gpu, **others)


def test_matmul_takes_what_was_measured(own_cache: Path) -> None:
    assert solve(problem()).kernel.choice != CHOICE
    path = tuned.store(GPU, KEY, CHOICE, {"us": 1.5})
    assert path is not None and path.parent == own_cache / "tuned" and path.stat().st_mode & 0o077 == 0
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) == CHOICE
    found = solve(problem())
    assert found.kernel.choice == CHOICE and found.why == "measured by layoutgemm.tune"
    assert solve(problem("NVIDIA H100")).kernel.choice != CHOICE  # another GPU's
    given = Sm90Choice(Sm90Config((64, 64), consumers=1))
    assert solve(problem(config=given)).kernel.choice == given  # the caller's word comes first
    other = Sm90Choice(Sm90Config((256, 128)), swapped=True)
    tuned.store(GPU, KEY.replace("512", "640"), other, {})
    assert solve(problem()).kernel.choice == CHOICE  # kept beside the other


def test_a_result_that_does_not_fit_is_passed_over() -> None:
    tuned.store(GPU, KEY, Sm90Choice(Sm90Config((64, 64), consumers=1, stages=200)), {})
    assert solve(problem()).kernel.choice != CHOICE


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"{\"x\":", b"{}", b"\xff\xfe", b'{"KEY": {"config": 3}}'])
def test_a_damaged_file_is_none(content: bytes) -> None:
    path = tuned.store(GPU, KEY, CHOICE, {})
    assert path is not None
    path.write_bytes(content.replace(b"KEY", KEY.encode()))
    os.utime(path, (1, 1))
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) is None
    tuned.store(GPU, KEY, CHOICE, {})
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) == CHOICE


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes are POSIX's")
def test_what_others_could_have_written_is_none() -> None:
    path = tuned.store(GPU, KEY, CHOICE, {})
    assert path is not None
    path.chmod(0o666)
    os.utime(path, (1, 1))
    assert tuned.lookup(GPU, (512, 512, 512, 1), ("bf16",) * 3, ("row",) * 3) is None


def test_refusals() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(OperandError, match="m = 0"):
        tune(0, 1, 1)
    with pytest.raises(OperandError, match="'bf16' or 'f16'"):
        tune(64, 64, 64, dtype="f32")
    if not torch.cuda.is_available():
        with pytest.raises(PlanError, match="torch finds none"):
            tune(64, 64, 64)


ORDERS = """
import sys
{first}
import layoutgemm
from layoutgemm.tune import Tuning
assert callable(layoutgemm.tune) and layoutgemm.tune is sys.modules["layoutgemm.tune"]
assert layoutgemm.tune.Tuning is Tuning
try:
    layoutgemm.tune(0, 1, 1)
except layoutgemm.OperandError as error:
    print(error)
"""


@pytest.mark.parametrize("first", ["import layoutgemm.tune", "from layoutgemm import tune; assert callable(tune)", ""])
def test_tune_is_called_whatever_was_imported_first(first: str) -> None:
    code = [sys.executable, "-c", ORDERS.format(first=first)]
    done = subprocess.run(code, capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("m = 0: an int of at least 1"), done.stderr
