"""Scalar, warp-wide and matrix instructions against what an H100 gave: tests/vectors/ptx_scalar_h100.xz."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.verify_ptx import emulate, judged, main
from layoutgemm.errors import LayoutError
from tests.micro import scalar, tensor_loads
from tests.micro.cuda_driver import CudaError
from tests.micro.emulated_device import EmulatedDevice
from tests.micro.scalar import Case

STORED = Path(__file__).parents[2] / "vectors" / "ptx_scalar_h100.xz"
ABOUT, INPUTS, RESULTS = scalar.load(STORED)
FEW = 128  # threads that are run: four warps of 32


def of_few(case: Case) -> str:
    """The first difference in the first threads, or ""."""
    text = scalar.module_of([case], ABOUT["target"])
    arrays = [words[:FEW] for words in INPUTS]
    (raw,) = EmulatedDevice(ABOUT["target"]).launch(text, "k0", 1, FEW, arrays, [8 * FEW])
    want = dict(RESULTS)[case][:FEW]
    wrong = scalar.differing(case, raw.view(np.uint64), want)
    at = int(np.argmax(wrong))
    return f"{case.body}: thread {at}: {int(raw.view(np.uint64)[at]):#x}, not {int(want[at]):#x}" if wrong.any() else ""


GROUPS: dict[str, list[Case]] = {}
for _case, _ in RESULTS:
    GROUPS.setdefault(re.split(r"\W", _case.body)[0], []).append(_case)


def test_the_file_has_all_forms():
    assert len(RESULTS) == 477 and len(GROUPS) > 40 and ABOUT["device"] == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_the_results_of_an_h100(name: str):
    assert not [text for case in GROUPS[name] if (text := of_few(case))]


@pytest.mark.slow
def test_all_threads_of_all_forms(capsys: pytest.CaptureFixture[str]):
    assert main([str(STORED)]) == 0 and "477 same, 0 different, 0 refused" in capsys.readouterr().out


def test_a_wrong_result_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case, want = RESULTS[0]
    changed = want.copy()
    changed[77] ^= np.uint64(1)
    row = judged(case, ABOUT["target"], INPUTS, changed)
    assert row.outcome == "different" and row.text.startswith("1 threads; thread 77: ")
    assert judged(Case("frobnicate.u32 %rx, %ra;", 32), ABOUT["target"], INPUTS, want).outcome == "refused"
    scalar.save(tmp_path / "one.xz", ABOUT, INPUTS, [(case, changed)])
    assert main([str(tmp_path / "one.xz")]) == 1 and "1 different" in capsys.readouterr().out


@pytest.mark.parametrize(("target", "seed"), [("sm_90a", 11), ("sm_100a", 12)])
def test_drawn_cases_run(target: str, seed: int):
    """The emulator takes what the generator draws; results are as wide as their registers."""
    cases = scalar.draw(random.Random(seed), 190, target)
    arrays = [words[:32] for words in scalar.inputs(seed)]
    assert len({case.body for case in cases}) == 190
    for case in cases[:: 1 if target == "sm_90a" else 2]:
        text = scalar.module_of([case], target)
        if "stmatrix" in case.body or ".shared" in case.body:
            continue  # these need all threads
        (raw,) = EmulatedDevice(target).launch(text, "k0", 1, 32, arrays, [256])
        assert case.bits == 64 or int(raw.view(np.uint64).max()) < 1 << case.bits, case.body


@pytest.mark.parametrize(("target", "only"), [("sm_90a", "fma.r[zmp].*bf16|cvt.*ftz.*bf16"), ("sm_120a", "8x4|scaled")])
def test_drawn_cases_of_some_forms(target: str, only: str):
    cases = scalar.draw(random.Random(1), 400, target, only)
    assert 12 < len(cases) < 60 and len({case.body for case in cases}) == len(cases)
    arrays = [words[:32] for words in scalar.inputs(1)]
    for case in cases:
        EmulatedDevice(target).launch(scalar.module_of([case], target), "k0", 1, 32, arrays, [256])


def test_matrix_cases_run_with_all_threads():
    rng = random.Random(3)
    for body in rng.sample(scalar.MATRIX, 4):
        emulate(Case(body, 64), "sm_90a", scalar.inputs(1))


def test_drawn_tensor_maps_load_what_the_tensor_holds():
    rng, loads = random.Random(5), 0
    for _ in range(12):
        load = tensor_loads.drawn(rng)
        try:
            tile = tensor_loads.loaded(EmulatedDevice("sm_90a"), load)
        except (CudaError, LayoutError) as error:
            pytest.fail(f"{load}: {error}")
        loads += bool(tile.any())
    assert loads > 3
