"""Levels 1 to 5 of the ladder: their machine code, their results, the checker's silence, and that it would speak."""

from __future__ import annotations

import copy
import dataclasses
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.checks import ring, self_loading
from layoutgemm.emulator.api import ORDERS
from layoutgemm.errors import EmulatorError, PlanError
from layoutgemm.kernels.ladder import levels
from layoutgemm.kernels.ladder import on_gpu as device_levels
from tests import needs

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]

# program, which of its levels -> instructions of the machine code: operand copies of a stage times the places that ask
# for one, products, ldmatrix, stores of pairs and of single elements. Multiples are those of the tile and the stages.
CODE = {
    ("hopper_01_mma_sync", 0): {"LDG": 2 * 16, "HMMA": 2 * 64, "STG": 3 * 64},
    ("hopper_01_mma_sync", 1): {"LDGSTS": 4 * 8, "HMMA": 64, "LDSM": 2 * 8, "STG": 3 * 64},
    ("hopper_02_wgmma", 0): {"LDGSTS": 4 * 12, "HGMMA": 4, "LDSM": 0, "STG": 3 * 32},
    ("hopper_03_tma", 0): {"UTMALDG": 5 * 2, "HGMMA": 4, "LDGSTS": 0, "STG": 3 * 32},
    ("hopper_04_warp_specialised", 0): {"UTMALDG": 2, "HGMMA": 4, "USETMAXREG": 2, "STG": 3 * 32},
    ("hopper_05_large_tiles", 0): {"UTMALDG": 2, "HGMMA": 4, "USETMAXREG": 2, "STG": 3 * 32},
    ("hopper_05_large_tiles", 1): {"UTMALDG": 2, "HGMMA": 4, "USETMAXREG": 2, "STG": 3 * 64},
}
IDS = [f"{program}-{index}" for program, index in CODE]
# Fewer k tiles than stages, K and N odd, several tiles along both; more than a round through the ring, pairs of C.
SIZES = ((130, 133, 77), (72, 264, 456))


@lru_cache
def level_of(program: str, index: int = 0) -> Any:
    return levels.load(KERNELS / f"{program}.py")[index]


def changed(level: Any, name: str, **attributes: Any) -> Any:
    """The level under another name, with other attributes of its kernel."""
    kernel = copy.copy(level.kernel)
    vars(kernel).update(attributes)
    return dataclasses.replace(level, name=f"{level.name}: {name}", kernel=kernel)


@pytest.mark.parametrize("which", CODE, ids=IDS)
def test_machine_code(which: tuple[str, int]) -> None:
    level = level_of(*which)
    compiled = level.compile()
    code, taken = compiled.sass(), compiled.resources
    assert {name: code.count(name) for name in CODE[which]} == CODE[which]
    assert not code.local_memory, [str(i) for i in code.local_memory]
    assert (taken.stack_bytes, taken.local_bytes) == (0, 0)
    if code.count("HGMMA"):
        assert code.wgmma_runs == (4,), code.wgmma_runs


@pytest.mark.parametrize("which", CODE, ids=IDS)
def test_the_programs_claims_are_proven(which: tuple[str, int]) -> None:
    report = level_of(*which).check()
    assert report, "\n".join(map(str, report.failures))
    assert {"pipeline", "order of K"} & {check.name for check in report}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("which", CODE, ids=IDS)
def test_right_and_silent(which: tuple[str, int], size: tuple[int, int, int]) -> None:
    """Exact results, nothing found."""
    level_of(*which).emulate(*size)


# One level by default, the first with roles of its own; the others for the longer run.
IN_ORDERS = [
    pytest.param(which, marks=[pytest.mark.slow] * (which[0] != "hopper_04_warp_specialised"))
    for which in CODE
    if which != ("hopper_01_mma_sync", 0)
]


@pytest.mark.parametrize("which", IN_ORDERS, ids=str)
def test_right_and_silent_in_several_orders(which: tuple[str, int]) -> None:
    """The small size in several orders of what is asynchronous."""
    level_of(*which).emulate(*SIZES[0], orders=ORDERS)


# ---------------------------------------------------------------------------------------------------- when it is wrong


def test_without_the_proxy_fence_it_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    from layoutgemm.kernels.dsl import bridge

    monkeypatch.setattr(bridge, "shared_writes_visible", lambda: None)
    with pytest.raises(EmulatorError, match="proxy"):
        changed(level_of("hopper_02_wgmma"), "no fence").emulate(64, 128, 128)


def test_a_stage_released_too_early_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    from layoutgemm.kernels.dsl import bridge

    wait = bridge.Wgmma.wait
    monkeypatch.setattr(bridge.Wgmma, "wait", lambda self, pending=0: wait(self, 2 * pending))
    with pytest.raises(EmulatorError, match="race"):
        changed(level_of("hopper_04_warp_specialised"), "two in flight").emulate(64, 128, 600)


def test_a_wrong_descriptor_is_a_wrong_result() -> None:
    level = level_of("hopper_03_tma")
    descriptor = level.kernel.a.descriptor
    crossed = dataclasses.replace(descriptor, k_steps=descriptor.k_steps[::-1])
    wrong = changed(level, "crossed", a=dataclasses.replace(level.kernel.a, descriptor=crossed))
    with pytest.raises(EmulatorError, match="elements of C are wrong; C"):
        wrong.emulate(64, 128, 64)
    assert [check.name for check in wrong.check().failures] == ["descriptor A"]


def test_a_ring_that_waits_for_too_many_stands_still() -> None:
    level = level_of("hopper_04_warp_specialised")
    kernel = level.kernel
    broken = changed(level, "five arrivals", pipeline=ring(kernel.stages, kernel.stage_bytes, warps=5, lag=1))
    with pytest.raises(EmulatorError, match="no thread can go on"):
        broken.emulate(64, 128, 600)


def test_the_program_says_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    level = level_of("hopper_03_tma")
    fine = ["--emulate", "64", "128", "64"]
    assert levels.main([level], fine) == 0
    assert "64x128x64 emulated" in capsys.readouterr().out
    other = self_loading(level.kernel.stages, level.kernel.stage_bytes + 16)
    broken = changed(level, "a barrier of other bytes", pipeline=other)
    assert levels.main([broken, level], fine) == 1
    first, *_, last = [line for line in capsys.readouterr().out.splitlines() if "level 3" in line]
    assert "FAILED" in first and "64x128x64 emulated" in last


def test_a_file_without_levels_is_named() -> None:
    with pytest.raises(PlanError, match=r"find_a_race\.py has no LEVELS"):
        levels.load(KERNELS / "find_a_race.py")


@pytest.mark.gpu
@pytest.mark.parametrize("which", CODE, ids=IDS)
def test_on_a_gpu(which: tuple[str, int]) -> None:
    level = level_of(*which)
    for size in ((264, 392, 72), (1000, 1037, 1100)):
        assert device_levels.check(level, *size) <= 1
    timed, library = device_levels.time_levels([level], 512, rounds=2)
    assert timed.right and timed.us > 0 and library.ratio == 1
